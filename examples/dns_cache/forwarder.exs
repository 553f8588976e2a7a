defmodule DnsCache.Forwarder do
  @moduledoc """
  A DNS server on the loopback interface that looks into its cache and asks another server for what is not there.

  Each query is answered in a process of its own: a slow one holds up no other, and one that crashes takes nothing with it.
  When too many are under way a query is dropped, and its client asks again.

  Only UDP is spoken, in packets of up to 512 bytes. An answer that is larger is passed on as truncated.
  """

  use GenServer

  alias DnsCache.{Answer, Cache, Query}

  @loopback {127, 0, 0, 1}
  # How many packets the socket delivers before it waits to be asked for more.
  @burst 100

  @doc "Asks for the answer to a question. It is a packet as the server sent it."
  @callback resolve(handle :: term(), DnsCache.Message.question()) :: {:ok, binary()} | {:error, term()}

  @doc """
  Starts a forwarder.

    * `:name` - of the process
    * `:port` - to listen on; 0, the default, takes a free one, which `port/1` tells
    * `:cache` - a `t:DnsCache.Cache.t/0`
    * `:upstream` - a module with the `resolve/2` of this behaviour, and its first argument
    * `:tasks` - the `Task.Supervisor` of the processes that answer
    * `:clock` - a function that returns the milliseconds since 1970
  """
  def start_link(options), do: GenServer.start_link(__MODULE__, options, name: Keyword.fetch!(options, :name))

  @doc "Returns the port that the forwarder listens on."
  def port(forwarder), do: GenServer.call(forwarder, :port)

  @impl true
  def init(options) do
    {:ok, socket} = :gen_udp.open(Keyword.get(options, :port, 0), [:binary, ip: @loopback, active: @burst])
    {:ok, options |> Map.new() |> Map.take([:cache, :upstream, :tasks, :clock]) |> Map.put(:socket, socket)}
  end

  @impl true
  def handle_call(:port, _from, forwarder), do: {:reply, elem(:inet.port(forwarder.socket), 1), forwarder}

  @impl true
  def handle_info({:udp, _socket, ip, port, packet}, forwarder) do
    Task.Supervisor.start_child(forwarder.tasks, fn -> serve(forwarder, {ip, port}, packet) end)
    {:noreply, forwarder}
  end

  def handle_info({:udp_passive, socket}, forwarder) do
    :ok = :inet.setopts(socket, active: @burst)
    {:noreply, forwarder}
  end

  # An earlier reply did not reach its client; that is the client's affair.
  def handle_info({:udp_error, _socket, _reason}, forwarder), do: {:noreply, forwarder}

  defp serve(forwarder, client, packet) do
    case Query.parse(packet) do
      {:ok, query} -> answer(forwarder, client, query)
      {:reject, rejection} -> send_to(forwarder, client, rejection)
      :ignore -> :ok
    end
  end

  defp answer(forwarder, client, query) do
    now = forwarder.clock.()

    case Cache.fetch(forwarder.cache, query.question, now) do
      {:ok, answer} -> send_to(forwarder, client, Answer.reply(answer, query, now))
      :miss -> ask_upstream(forwarder, client, query)
    end
  end

  # The client has its answer before it is stored: storing may have to wait for memcached.
  defp ask_upstream(%{upstream: {module, handle}} = forwarder, client, query) do
    with {:ok, packet} <- module.resolve(handle, query.question),
         now = forwarder.clock.(),
         {:ok, answer} <- Answer.new(packet, query.question, now) do
      send_to(forwarder, client, Answer.reply(answer, query, now))
      Cache.store(forwarder.cache, query.question, answer, now)
    else
      _no_answer -> send_to(forwarder, client, Answer.failure(query))
    end
  end

  defp send_to(forwarder, {ip, port}, packet), do: :gen_udp.send(forwarder.socket, ip, port, packet)
end
