"""State as a process function sees it: one record at a time on the outside, whole columns on the inside."""
