"""Measure what one lying device costs under each rule of [policy.robust]; all halves run in one process."""
