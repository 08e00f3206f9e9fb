// Carrier of the precompiled torch header; see FullshardTorchPch.cmake.
