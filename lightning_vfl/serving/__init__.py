"""Predictions in production: every party answers from its own half, and a gateway joins the answers.

An ``Endpoint`` is a party's process. It calls the gateway, as a party calls the server in training, and answers with
embeddings. A ``Gateway`` asks the parties, and runs the server's half. No module here imports training code.
"""
