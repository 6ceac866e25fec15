"""Measure speed, memory and error of attentions and whole models, and compare them with peers."""
