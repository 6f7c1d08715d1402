"""What vLLM's parser tests find in place of vLLM: its protocol classes, its parser
classes, which ask Penstock's parser, and tokenizers of no model.
"""
