"""`penstock worker --gpus`: which cards, and one supervised worker for each of them or each
group."""
