defmodule Replicas.Server do
  @moduledoc """
  An HTTP server on the loopback interface that takes its time, and can die and come back on the same port.

  It says to the tally that a request came in.
  """

  use GenServer

  @loopback {127, 0, 0, 1}
  @options [:binary, ip: @loopback, packet: :http_bin, active: false, reuseaddr: true, nodelay: true, backlog: 64]

  defstruct [:name, :answer_ms, :on_request, :life, :socket, port: 0]

  @doc "Starts a server with a `:name`, that takes `:answer_ms` for an answer and calls `:on_request` for each request."
  def start_link(options), do: GenServer.start_link(__MODULE__, struct!(__MODULE__, options))

  @doc "Returns what its clients call it: its name and its port."
  def endpoint(server), do: GenServer.call(server, :endpoint)

  @doc "Closes its port and all its connections, in the middle of whatever they do."
  def die(server), do: GenServer.call(server, :die)

  @doc "Opens the same port again."
  def come_back(server), do: GenServer.call(server, :come_back)

  @impl true
  def init(server) do
    Process.flag(:trap_exit, true)
    {:ok, live(server)}
  end

  @impl true
  def handle_call(:endpoint, _from, server), do: {:reply, {server.name, server.port}, server}

  def handle_call(:die, _from, server) do
    # Before its socket is closed, which would let it end in peace.
    Process.exit(server.life, :kill)
    :ok = :gen_tcp.close(server.socket)
    {:reply, :ok, %{server | life: nil, socket: reserve(server.port)}}
  end

  def handle_call(:come_back, _from, server) do
    :ok = :socket.close(server.socket)
    {:reply, :ok, live(server)}
  end

  @impl true
  def handle_info({:EXIT, _life, _reason}, server), do: {:noreply, server}

  # A socket that is bound and does not listen: connections are refused, and nobody else gets the port.
  defp reserve(port) do
    {:ok, socket} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.setopt(socket, {:socket, :reuseaddr}, true)
    :ok = :socket.bind(socket, %{family: :inet, addr: @loopback, port: port})
    socket
  end

  # Connections are linked to the process that accepts them, and so live as long as it does.
  defp live(server) do
    {:ok, socket} = :gen_tcp.listen(server.port, @options)
    {:ok, port} = :inet.port(socket)
    %{server | socket: socket, port: port, life: spawn_link(fn -> accept(socket, server) end)}
  end

  defp accept(socket, server) do
    with {:ok, connection} <- :gen_tcp.accept(socket) do
      process = spawn_link(fn -> receive do: (:yours -> serve(connection, server)) end)
      :ok = :gen_tcp.controlling_process(connection, process)
      send(process, :yours)
      accept(socket, server)
    end
  end

  defp serve(connection, server) do
    case :gen_tcp.recv(connection, 0) do
      {:ok, :http_eoh} ->
        server.on_request.()
        Process.sleep(server.answer_ms)
        body = "found by #{server.name}"
        :gen_tcp.send(connection, "HTTP/1.1 200 OK\r\ncontent-length: #{byte_size(body)}\r\n\r\n#{body}")
        serve(connection, server)

      {:ok, _line_or_header} ->
        serve(connection, server)

      {:error, _reason} ->
        :gen_tcp.close(connection)
    end
  end
end
