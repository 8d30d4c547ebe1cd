"""From logits to text: sample, append, check, one token after another."""
