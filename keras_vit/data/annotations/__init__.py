"""Annotations that draw regions: COCO JSON, LabelMe JSON and YOLO text files, in one common form, and their masks."""
