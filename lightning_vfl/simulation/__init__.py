"""Pure models of the world around the parties: what is sent, how long it takes, who fails. No Lightning."""
