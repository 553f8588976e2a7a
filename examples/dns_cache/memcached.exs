defmodule DnsCache.Memcached do
  @moduledoc """
  A client of memcached's text protocol: `get` and `set`.

  Connecting, sending and each piece of a reply may take a second. A cache that is slower than that is slower than asking
  again, and waiting longer only makes the breaker open later.
  """

  alias DnsCache.Connections

  @timeout_ms 1_000
  @longest_key 250
  # What memcached takes unless it is told otherwise.
  @largest_value 1_048_576

  @enforce_keys [:connections, :port]
  defstruct [:connections, :port, host: {127, 0, 0, 1}, timeout: @timeout_ms]

  @type t :: %__MODULE__{
          connections: atom(),
          host: :inet.ip_address(),
          port: :inet.port_number(),
          timeout: pos_integer()
        }

  @doc "Returns the value of a key, `:miss`, or what went wrong."
  @spec get(t(), binary()) :: {:ok, binary()} | :miss | {:error, term()}
  def get(client, key) do
    request(client, key, ["get ", key, "\r\n"], fn socket ->
      with {:ok, line} <- line(socket, client), do: value(String.split(line), key, socket, client)
    end)
  end

  @doc "Sets a key for `seconds`, at most 30 days: memcached takes more for a date."
  @spec set(t(), binary(), binary(), 1..2_592_000) :: :ok | {:error, term()}
  def set(client, key, value, seconds) do
    head = "set #{key} 0 #{seconds} #{byte_size(value)}\r\n"

    request(client, key, [head, value, "\r\n"], fn socket ->
      case line(socket, client) do
        {:ok, "STORED\r\n"} -> :ok
        {:ok, line} -> {:error, {:unexpected, line}}
        error -> error
      end
    end)
  end

  # A space or a line break in a key would make another command of the request.
  defp request(client, key, request, read) do
    if valid?(key) do
      Connections.with_connection(client.connections, fn -> connect(client) end, fn socket ->
        with :ok <- :gen_tcp.send(socket, request), do: read.(socket)
      end)
    else
      {:error, :invalid_key}
    end
  end

  defp valid?(key),
    do: byte_size(key) in 1..@longest_key and for(<<byte <- key>>, byte <= 32 or byte == 127, do: byte) == []

  defp connect(client) do
    options = [:binary, active: false, packet: :line, nodelay: true]
    timeouts = [send_timeout: client.timeout, send_timeout_close: true]
    :gen_tcp.connect(client.host, client.port, options ++ timeouts, client.timeout)
  end

  defp value(["END"], _key, _socket, _client), do: :miss

  defp value(["VALUE", key, _flags, digits], key, socket, client) do
    with {size, ""} when size in 0..@largest_value <- Integer.parse(digits),
         {:ok, value} <- bytes(socket, size, client),
         {:ok, "END\r\n"} <- line(socket, client) do
      {:ok, value}
    else
      {:error, reason} -> {:error, reason}
      other -> {:error, {:unexpected, other}}
    end
  end

  defp value(line, _key, _socket, _client), do: {:error, {:unexpected, line}}

  defp line(socket, client) do
    case :gen_tcp.recv(socket, 0, client.timeout) do
      {:ok, line} -> if String.ends_with?(line, "\r\n"), do: {:ok, line}, else: {:error, {:unexpected, line}}
      error -> error
    end
  end

  defp bytes(socket, size, client) do
    with :ok <- :inet.setopts(socket, packet: :raw),
         {:ok, bytes} <- :gen_tcp.recv(socket, size + 2, client.timeout),
         :ok <- :inet.setopts(socket, packet: :line) do
      if String.ends_with?(bytes, "\r\n"), do: {:ok, binary_part(bytes, 0, size)}, else: {:error, {:unexpected, bytes}}
    end
  end
end
