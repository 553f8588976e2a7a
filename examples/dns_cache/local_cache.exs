defmodule DnsCache.LocalCache do
  @moduledoc """
  A cache in this node's memory. It never fails.

  Readers look into an ETS table; the process that owns it writes. When `:size` answers are there, the one that is the
  first to expire makes place: those that have expired go first of all, so nothing has to sweep them out.
  """

  @behaviour DnsCache.Cache

  use GenServer

  alias DnsCache.{Answer, Message}

  @size 10_000

  @doc "Starts a cache. `:name` is its handle, `:size` how many answers it holds at most."
  def start_link(options), do: GenServer.start_link(__MODULE__, options, name: Keyword.fetch!(options, :name))

  @impl DnsCache.Cache
  def fetch(name, question, now) do
    with [{_key, answer, hits}] <- :ets.lookup(name, Message.key(question)),
         true <- Answer.fresh?(answer, now) do
      :counters.add(hits, 1, 1)
      {:ok, answer}
    else
      _absent_or_old -> :miss
    end
  end

  @impl DnsCache.Cache
  def store(name, question, answer, now) do
    if Answer.fresh?(answer, now), do: GenServer.call(name, {:store, Message.key(question), answer}), else: :ok
  end

  @doc "Returns how many answers there are, those included that have expired."
  def count(name), do: :ets.info(name, :size)

  @doc "Returns how often an answer was found."
  def hits(name), do: GenServer.call(name, :hits)

  @impl GenServer
  def init(options) do
    name = Keyword.fetch!(options, :name)
    ^name = :ets.new(name, [:named_table, :set, :protected, read_concurrency: true])

    {:ok,
     %{
       answers: name,
       by_expiry: :ets.new(__MODULE__, [:ordered_set, :private]),
       size: Keyword.get(options, :size, @size),
       hits: :counters.new(1, [])
     }}
  end

  @impl GenServer
  def handle_call({:store, key, answer}, _from, cache) do
    forget(cache, key)
    if :ets.info(cache.answers, :size) >= cache.size, do: evict(cache)
    # The counter is in each row, so that a reader finds both with one look.
    :ets.insert(cache.answers, {key, answer, cache.hits})
    :ets.insert(cache.by_expiry, {{expires_at(answer), key}})
    {:reply, :ok, cache}
  end

  def handle_call(:hits, _from, cache), do: {:reply, :counters.get(cache.hits, 1), cache}

  defp forget(cache, key) do
    for {^key, answer, _hits} <- :ets.take(cache.answers, key),
        do: :ets.delete(cache.by_expiry, {expires_at(answer), key})
  end

  defp evict(cache) do
    {_expires_at, key} = :ets.first(cache.by_expiry)
    forget(cache, key)
  end

  defp expires_at(answer), do: answer.born_at + answer.ttl * 1_000
end
