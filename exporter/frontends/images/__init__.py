"""Order statistics of image windows and of frames: one program of minima and maxima over whole planes, in every profile."""
