defmodule DnsCache.Caches do
  @moduledoc """
  The two caches as one: memcached behind a circuit breaker, and the local cache for when memcached does not answer.

  Every lookup goes through `call`, whatever state the breaker is in. An open breaker refuses it at once, so that costs
  nothing; and when `reset` is over it is the next lookup that tries memcached and closes the breaker. To choose the cache
  by the breaker's state would be to decide twice, and of many breakers (not this one) the state only moves on in a call:
  memcached would never be tried again.

  Every answer is stored in both, so the local cache knows what was asked when memcached dies.
  """

  @behaviour DnsCache.Cache

  # One attempt: the local cache is nearer than a second one. The lease is longer than the slowest lookup, which waits a
  # second each for the connection and three pieces of the reply.
  use ExternalService,
    circuit_breaker: [consecutive: 3, reset: 1_000, half_open: [lease: 5_000]],
    retry: [max_attempts: 1]

  alias DnsCache.Cache

  @enforce_keys [:remote, :local]
  defstruct [:remote, :local]

  @impl true
  def fetch(caches, question, now) do
    guarded(
      fn -> Cache.fetch(caches.remote, question, now) end,
      fn _error -> Cache.fetch(caches.local, question, now) end
    )
  end

  @impl true
  def store(caches, question, answer, now) do
    :ok = Cache.store(caches.local, question, answer, now)
    guarded(fn -> Cache.store(caches.remote, question, answer, now) end, fn _error -> :ok end)
  end

  defp guarded(remote, fallback), do: call([fallback: fallback], fn -> retry_errors(remote.()) end)

  defp retry_errors({:error, reason}), do: {:retry, reason}
  defp retry_errors(result), do: result
end
