defmodule DnsCache do
  @moduledoc """
  A caching DNS forwarder that keeps its answers in memcached, and does without when it has to.
  """

  use Supervisor

  alias DnsCache.{Caches, Connections, Forwarder, LocalCache, Memcached, RemoteCache, Upstream}

  @queries 200

  @doc """
  Starts the forwarder and all that it needs.

    * `:memcached` - the port of memcached on the loopback interface
    * `:upstream` - the address, `{ip, port}`, of the server to ask
    * `:port` - to listen on; default: a free one
    * `:clock` - a function that returns the milliseconds since 1970; default: the machine's, which Erlang keeps from jumping
  """
  def start_link(options), do: Supervisor.start_link(__MODULE__, options, name: __MODULE__)

  @doc "Returns the port that the forwarder listens on."
  def port, do: Forwarder.port(Forwarder)

  @impl true
  def init(options) do
    memcached = %Memcached{connections: Connections, port: Keyword.fetch!(options, :memcached)}
    caches = %Caches{remote: {RemoteCache, memcached}, local: {LocalCache, LocalCache}}

    forwarder = [
      name: Forwarder,
      port: Keyword.get(options, :port, 0),
      cache: {Caches, caches},
      upstream: {Upstream, Keyword.fetch!(options, :upstream)},
      tasks: DnsCache.Queries,
      clock: Keyword.get(options, :clock, fn -> System.system_time(:millisecond) end)
    ]

    children = [
      {LocalCache, name: LocalCache},
      {Connections, name: Connections},
      Caches,
      Upstream,
      {Task.Supervisor, name: DnsCache.Queries, max_children: @queries},
      {Forwarder, forwarder}
    ]

    Supervisor.init(children, strategy: :one_for_one)
  end
end
