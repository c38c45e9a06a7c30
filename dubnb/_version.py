"""The version, alone in its file so that setup.cfg can read it without importing the package."""

VERSION = "0.1.0"
