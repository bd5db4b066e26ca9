"""Models as folders of a web page that computes in the browser: no picture leaves it.

page_folder.py writes the folder, page/ has the page's own files, and runtime.py gets the libraries that it needs.
"""
