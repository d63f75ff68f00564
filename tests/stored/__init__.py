"""Files that earlier versions have written. Every later version must read them."""
