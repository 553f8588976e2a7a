defmodule DnsCache.Daemon do
  @moduledoc """
  A real memcached that can be killed and started again on the same port.

  It dies with the process that started it, however that ends, and with the whole VM: between them stands a shell that
  passes signals on and kills when its input ends.
  """

  @loopback {127, 0, 0, 1}
  @script ~S("$@" >/dev/null 2>&1 & pid=$!; while read -r signal; do kill -"$signal" "$pid"; done; kill -9 "$pid"; wait)
  @tries 500

  @enforce_keys [:port, :reservation]
  defstruct [:port, :reservation, :shell]

  @doc "Starts memcached on a free port and waits until it answers."
  def start, do: start(reserve())

  @doc "Starts one that was killed."
  def start(%__MODULE__{shell: nil, port: port} = daemon) do
    # A user for memcached is only needed, and heard, where root starts it.
    command = ["memcached", "-l", "127.0.0.1", "-p", "#{port}", "-u", "root"]
    shell = Port.open({:spawn_executable, "/bin/sh"}, args: ["-c", @script, "sh" | command])
    await(port, true, @tries)
    %{daemon | shell: shell}
  end

  @doc "Kills memcached with signal 9 and waits until it is gone."
  def kill(%__MODULE__{port: port, shell: shell} = daemon) do
    Port.close(shell)
    await(port, false, @tries)
    %{daemon | shell: nil}
  end

  @doc "Sends memcached a signal: `STOP` makes it hang, `CONT` go on."
  def signal(%__MODULE__{shell: shell}, signal), do: Port.command(shell, signal <> "\n")

  @doc "Returns whether somebody listens on a port."
  def listening?(port) do
    case :gen_tcp.connect(@loopback, port, [], 1_000) do
      {:ok, socket} -> :gen_tcp.close(socket) == :ok
      {:error, _reason} -> false
    end
  end

  # A socket that is bound and does not listen keeps the port ours while memcached is dead: connections are refused, and
  # the system lends the port to nobody else.
  defp reserve do
    {:ok, socket} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.setopt(socket, {:socket, :reuseaddr}, true)
    :ok = :socket.bind(socket, %{family: :inet, addr: @loopback, port: 0})
    {:ok, %{port: port}} = :socket.sockname(socket)
    %__MODULE__{port: port, reservation: socket}
  end

  defp await(_port, _listening?, 0), do: raise("memcached did not do as it was told: is it installed?")

  defp await(port, listening?, tries) do
    unless listening?(port) == listening? do
      Process.sleep(20)
      await(port, listening?, tries - 1)
    end
  end
end
