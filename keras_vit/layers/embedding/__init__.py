"""From pixels to tokens: patches, palettes, class tokens, hidden and dropped patches."""
