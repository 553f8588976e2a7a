# Loads the example: each file knows only those above it. What stands in for the world around it is in stage/.

files = ~w(connection search stage/pace stage/server stage/crowd stage/tally stage/screen)

for file <- files, do: Code.require_file("#{file}.exs", __DIR__)
