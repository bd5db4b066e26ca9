"""Reads COCO, LabelMe, YOLO, VOC and CSV annotations into a common form, and draws masks from them."""
