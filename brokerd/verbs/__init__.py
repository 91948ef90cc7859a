"""The verbs of a program: BEGIN DIALOG, SEND, RECEIVE, END CONVERSATION and their relatives."""
