"""The page in a browser that shows stores: `arrowstate ui`, `StateStore.ui`, `RunningJob.ui`."""
