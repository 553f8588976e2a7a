# Loads the example: each file knows only those above it. What stands in for the world around it is in stage/.

# From Elixir 1.15 on, Mix hides the parts of OTP that mix.exs does not name.
if function_exported?(Mix, :ensure_application!, 1), do: apply(Mix, :ensure_application!, [:crypto])

files =
  ~w(message query answer cache local_cache connections memcached remote_cache caches forwarder upstream dns_cache)

stage = ~w(stage/authority stage/daemon stage/dig)

for file <- files ++ stage, do: Code.require_file("#{file}.exs", __DIR__)
