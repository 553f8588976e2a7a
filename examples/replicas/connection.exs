defmodule Replicas.Connection do
  @moduledoc """
  A client of HTTP/1.1 on the loopback interface. Each process keeps one connection to each server, as each connection of
  `wrk` does.
  """

  @loopback {127, 0, 0, 1}
  @options [:binary, packet: :http_bin, active: false, nodelay: true]
  @timeout_ms 1_000

  @doc "Returns `{:ok, status, body}` or `{:error, reason}`."
  def get(port, path) do
    case Process.get({__MODULE__, port}) do
      nil -> on_a_new_one(port, path)
      socket -> on_a_kept_one(socket, port, path)
    end
  end

  # It may have been closed while nobody used it, which says nothing about the server now.
  defp on_a_kept_one(socket, port, path) do
    with {:error, :closed} <- exchange(socket, port, path), do: on_a_new_one(port, path)
  end

  defp on_a_new_one(port, path) do
    with {:ok, socket} <- :gen_tcp.connect(@loopback, port, @options, @timeout_ms) do
      Process.put({__MODULE__, port}, socket)
      exchange(socket, port, path)
    end
  end

  # After an error what is on the way may be the answer to this request, so the connection is of no use to the next.
  defp exchange(socket, port, path) do
    with :ok <- :gen_tcp.send(socket, "GET #{path} HTTP/1.1\r\nhost: localhost:#{port}\r\n\r\n"),
         {:ok, {:http_response, _version, status, _phrase}} <- receive_packet(socket),
         {:ok, length} <- receive_headers(socket, 0),
         {:ok, body} <- receive_body(socket, length) do
      {:ok, status, body}
    else
      {:error, reason} ->
        Process.delete({__MODULE__, port})
        :gen_tcp.close(socket)
        {:error, reason}
    end
  end

  defp receive_packet(socket) do
    with {:ok, {:http_error, line}} <- :gen_tcp.recv(socket, 0, @timeout_ms), do: {:error, {:no_http, line}}
  end

  defp receive_headers(socket, length) do
    case receive_packet(socket) do
      {:ok, {:http_header, _, :"Content-Length", _, value}} -> receive_headers(socket, String.to_integer(value))
      {:ok, {:http_header, _, _name, _, _value}} -> receive_headers(socket, length)
      {:ok, :http_eoh} -> {:ok, length}
      {:error, reason} -> {:error, reason}
    end
  end

  defp receive_body(_socket, 0), do: {:ok, ""}

  defp receive_body(socket, length) do
    with :ok <- :inet.setopts(socket, packet: :raw),
         {:ok, body} <- :gen_tcp.recv(socket, length, @timeout_ms),
         :ok <- :inet.setopts(socket, packet: :http_bin),
         do: {:ok, body}
  end
end
