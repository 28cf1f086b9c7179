"""Images: files → pixels → patches → vectors.

config        what an image looks like to a model: size, patches, normalisation
files         the bytes of an image file → pixels; needs Pillow
patches       the front end: patches of pixels → vectors
augment       random changes of a batch of images
"""
