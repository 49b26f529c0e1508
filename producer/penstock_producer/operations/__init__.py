"""Operations on what was accepted, each written once for all doors."""
