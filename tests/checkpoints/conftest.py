"""This folder on the import path, for the tests in its subfolders: golden_files, sampled."""
