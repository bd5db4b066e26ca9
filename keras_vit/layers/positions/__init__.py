"""Positions: tables that are added to tokens, and those inside attention."""
