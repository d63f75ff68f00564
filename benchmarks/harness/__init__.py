"""What takes measures, of this tree and of another one in turn, keeps the figures and says what has become worse."""
