defmodule DnsCache.Upstream do
  @moduledoc """
  Asks the server that knows, over UDP. A packet may get lost, so it is asked again.

  There is no breaker: without this server there is nobody else to ask.
  """

  @behaviour DnsCache.Forwarder

  use ExternalService,
    circuit_breaker: [tolerate: :infinity],
    retry: [max_attempts: 3, base: 50, jitter: true]

  alias DnsCache.Message

  @timeout_ms 1_000

  @impl true
  def resolve(address, question) do
    call(fn ->
      case exchange(address, question) do
        {:ok, packet} -> {:ok, packet}
        {:error, reason} -> {:retry, reason}
      end
    end)
  end

  # A socket for each question has a port that strangers have to guess, and only hears the server it is connected to.
  defp exchange({ip, port}, question) do
    {:ok, socket} = :gen_udp.open(0, [:binary, active: false])
    <<id::16>> = :crypto.strong_rand_bytes(2)

    with :ok <- :gen_udp.connect(socket, ip, port),
         :ok <- :gen_udp.send(socket, Message.encode(Message.new(id: id, questions: [question]))) do
      await(socket, id, now() + @timeout_ms)
    end
    |> tap(fn _result -> :gen_udp.close(socket) end)
  end

  # What has another id is no answer to this question; the answer may still come.
  defp await(socket, id, deadline) do
    case :gen_udp.recv(socket, 0, max(deadline - now(), 0)) do
      {:ok, {_ip, _port, <<^id::16, _rest::binary>> = packet}} -> {:ok, packet}
      {:ok, _other} -> await(socket, id, deadline)
      {:error, reason} -> {:error, reason}
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
