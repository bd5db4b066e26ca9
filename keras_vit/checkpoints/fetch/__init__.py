"""Published checkpoints: the catalogue, the downloader, and the Hugging Face hub."""
