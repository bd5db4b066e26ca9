"""Positions: tables added to tokens, and positions inside attention."""
