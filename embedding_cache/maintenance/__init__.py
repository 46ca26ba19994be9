"""What is done with versions after they exist: verified, compared, folded, taken back and collected."""
