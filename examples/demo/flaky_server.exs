defmodule Demo.FlakyServer do
  @moduledoc """
  A small HTTP server on the loopback interface that can be told to misbehave.

    * `:healthy` - every request is answered with 200
    * `:failing` - one request in five is answered with 500
    * `:dead` - the listening socket is closed, and connections are refused
  """

  use GenServer

  @loopback {127, 0, 0, 1}
  @acceptors 20
  @failing_share 0.2
  @listen_options [
    :binary,
    ip: @loopback,
    packet: :http_bin,
    active: false,
    reuseaddr: true,
    backlog: 64
  ]

  def start_link(_options), do: GenServer.start_link(__MODULE__, nil, name: __MODULE__)

  @doc "Returns where the server listens, or would if it lived."
  def url, do: GenServer.call(__MODULE__, :url)

  @doc "Changes how the server behaves from now on."
  def behave(how) when how in [:healthy, :failing, :dead],
    do: GenServer.call(__MODULE__, {:behave, how})

  @impl true
  def init(nil), do: {:ok, listen(%{port: 0, failing: :atomics.new(1, []), socket: nil})}

  @impl true
  def handle_call(:url, _from, server), do: {:reply, "http://127.0.0.1:#{server.port}/", server}

  def handle_call({:behave, :dead}, _from, server), do: {:reply, :ok, close(server)}

  def handle_call({:behave, how}, _from, server) do
    :atomics.put(server.failing, 1, if(how == :failing, do: 1, else: 0))
    {:reply, :ok, listen(server)}
  end

  defp listen(%{socket: {:listening, _socket}} = server), do: server

  defp listen(server) do
    release(server.socket)
    {:ok, socket} = :gen_tcp.listen(server.port, @listen_options)
    {:ok, port} = :inet.port(socket)
    for _ <- 1..@acceptors, do: spawn_link(fn -> accept(socket, server.failing) end)
    %{server | port: port, socket: {:listening, socket}}
  end

  defp close(%{socket: {:listening, socket}} = server) do
    :ok = :gen_tcp.close(socket)
    %{server | socket: {:reserved, reserve(server.port)}}
  end

  # A socket that is bound and does not listen: connections are refused, and nobody else gets the port. Without it the
  # system may lend the port to one of the clients, which would then connect to itself.
  defp reserve(port) do
    {:ok, socket} = :socket.open(:inet, :stream, :tcp)
    :ok = :socket.setopt(socket, {:socket, :reuseaddr}, true)
    :ok = :socket.bind(socket, %{family: :inet, addr: @loopback, port: port})
    socket
  end

  defp release({:reserved, socket}), do: :ok = :socket.close(socket)
  defp release(nil), do: :ok

  # Ends when the listening socket is closed.
  defp accept(socket, failing) do
    with {:ok, connection} <- :gen_tcp.accept(socket) do
      serve(connection, failing)
      accept(socket, failing)
    end
  end

  defp serve(connection, failing) do
    case :gen_tcp.recv(connection, 0, 500) do
      {:ok, :http_eoh} -> :gen_tcp.send(connection, response(failing?(failing)))
      {:ok, _line_or_header} -> serve(connection, failing)
      {:error, _reason} -> :ok
    end

    :gen_tcp.close(connection)
  end

  defp failing?(failing), do: :atomics.get(failing, 1) == 1 and :rand.uniform() < @failing_share

  defp response(false), do: response("200 OK", "sunny")
  defp response(true), do: response("500 Internal Server Error", "storm")

  defp response(status, body) do
    "HTTP/1.1 #{status}\r\ncontent-length: #{byte_size(body)}\r\nconnection: close\r\n\r\n#{body}"
  end
end
