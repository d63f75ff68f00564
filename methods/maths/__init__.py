"""Formulas shared by methods: tensors in, tensors out, no state. One module a theme, each beside its paper."""
