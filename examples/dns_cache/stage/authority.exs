defmodule DnsCache.Authority do
  @moduledoc """
  Stands in for the Internet: a DNS server on the loopback interface with a few names of its own. It counts what it is asked.

  A zone is a map of `{name, type}` to `{ttl, data}`. What is not in it does not exist, for as long as `ttl/0` says.
  """

  use GenServer

  alias DnsCache.Message

  @loopback {127, 0, 0, 1}
  @no_such_name 3
  @negative_ttl 60

  def start_link(zone), do: GenServer.start_link(__MODULE__, zone)

  @doc "Returns where it listens, `{ip, port}`."
  def address(authority), do: {@loopback, GenServer.call(authority, :port)}

  @doc "Returns how many questions it was asked."
  def asked(authority), do: GenServer.call(authority, :asked)

  @doc "Returns for how many seconds a name does not exist."
  def ttl, do: @negative_ttl

  @impl true
  def init(zone) do
    {:ok, socket} = :gen_udp.open(0, [:binary, ip: @loopback, active: true])
    {:ok, %{zone: zone, socket: socket, asked: 0}}
  end

  @impl true
  def handle_call(:port, _from, server), do: {:reply, elem(:inet.port(server.socket), 1), server}
  def handle_call(:asked, _from, server), do: {:reply, server.asked, server}

  @impl true
  def handle_info({:udp, socket, ip, port, packet}, server) do
    {:ok, %{questions: [question]} = query} = Message.decode(packet)
    reply = %{query | response?: true, authoritative?: true} |> Map.merge(answer(server.zone, question))
    :ok = :gen_udp.send(socket, ip, port, Message.encode(reply))
    {:noreply, %{server | asked: server.asked + 1}}
  end

  defp answer(zone, {name, type, _class} = question) do
    {key, _type, _class} = Message.key(question)

    case zone do
      %{{^key, ^type} => {ttl, data}} -> %{answers: [Message.record(name, type, ttl, data)]}
      %{} -> %{rcode: @no_such_name, authority: [Message.record(~c"test", :soa, 3_600, soa())]}
    end
  end

  defp soa, do: {~c"ns.test", ~c"admin.test", 1, 7_200, 900, 86_400, @negative_ttl}
end
