defmodule DnsCache.Connections do
  @moduledoc """
  Connections to one server that are kept from one use to the next.

  A connection belongs to the process that uses it, so it closes when that process dies, and to this one in between. It is
  kept when its use went well. After any error it is closed, and the idle ones too: what a dead server left behind would
  fail one by one when the server is back.
  """

  use GenServer

  @idle 16

  @doc "Starts with no connection. `:name` names the process."
  def start_link(options), do: GenServer.start_link(__MODULE__, nil, name: Keyword.fetch!(options, :name))

  @doc """
  Runs `use` with an idle connection, or with what `connect` returns in `{:ok, socket}`, and returns its result.

  An error, `connect`'s or `use`'s, is `{:error, reason}`.
  """
  def with_connection(name, connect, use) do
    with {:ok, socket} <- take(name, connect) do
      case use.(socket) do
        {:error, _reason} = error ->
          :gen_tcp.close(socket)
          GenServer.call(name, :close_all)
          error

        result ->
          keep(name, socket)
          result
      end
    end
  end

  defp take(name, connect) do
    case GenServer.call(name, :take) do
      nil -> connect.()
      socket -> {:ok, socket}
    end
  end

  defp keep(name, socket) do
    case :gen_tcp.controlling_process(socket, Process.whereis(name)) do
      :ok -> GenServer.cast(name, {:keep, socket})
      {:error, _closed_meanwhile} -> :gen_tcp.close(socket)
    end
  end

  @impl true
  def init(nil), do: {:ok, []}

  @impl true
  def handle_call(:take, _from, []), do: {:reply, nil, []}

  def handle_call(:take, {user, _tag} = from, [socket | idle]) do
    case :gen_tcp.controlling_process(socket, user) do
      :ok -> {:reply, socket, idle}
      {:error, _closed_meanwhile} -> handle_call(:take, from, idle)
    end
  end

  def handle_call(:close_all, _from, idle) do
    Enum.each(idle, &:gen_tcp.close/1)
    {:reply, :ok, []}
  end

  @impl true
  def handle_cast({:keep, socket}, idle) when length(idle) < @idle, do: {:noreply, [socket | idle]}

  def handle_cast({:keep, socket}, idle) do
    :gen_tcp.close(socket)
    {:noreply, idle}
  end
end
