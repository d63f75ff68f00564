"""Write the generated parts of docs/ from the code."""
