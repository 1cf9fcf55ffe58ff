"""CIFAR-10 and data sets like it: small images in a few classes, classified by a torchvision model.

``config`` the options · ``sources`` where the images come from · ``data`` transforms and loaders · ``training`` the
program that every process runs · ``command`` from the command line to the processes.
"""
