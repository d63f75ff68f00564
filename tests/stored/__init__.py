"""Files that earlier versions have written. What was once written is read for ever."""
