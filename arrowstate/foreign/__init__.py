"""State that other systems wrote, read where it lies."""
