"""From pixels to tokens: patches, palettes, class tokens, and patches that are hidden or left out."""
