"""The comfortable layer of the SDK: typed dialogs, posts, deliveries, App (docs/spec/sdk.md).

It uses nothing but the verbs of `brokerd.client`, so whatever it does a program can do by hand.
"""
