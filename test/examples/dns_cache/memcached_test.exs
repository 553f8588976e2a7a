# SPDX-License-Identifier: Apache-2.0
Code.require_file("../../../examples/dns_cache/load.exs", __DIR__)

defmodule DnsCache.MemcachedTest do
  # A scripted server says what a real one would not.
  use ExUnit.Case, async: true

  alias DnsCache.{Connections, Memcached}

  @largest_item 1_048_576

  # The server tells of a command when it comes to it, which may be after the client has given up.
  @patience 10_000

  setup context do
    start_supervised!({Connections, name: context.test})
    {:ok, listener} = :gen_tcp.listen(0, [:binary, ip: {127, 0, 0, 1}, active: false, packet: :line])
    {:ok, port} = :inet.port(listener)
    client = %Memcached{connections: context.test, port: port, timeout: 5_000}
    {:ok, listener: listener, client: client}
  end

  # Answers the commands that come, whichever connection they come by, with these replies; then says nothing more. The
  # test gets `{:command, number of the connection, line}` for each.
  defp script(listener, replies) do
    test = self()
    script = start_supervised!({Agent, fn -> replies end})
    start_supervised!({Task, fn -> accept(listener, script, test, 1) end})
  end

  defp accept(listener, script, test, number) do
    {:ok, socket} = :gen_tcp.accept(listener)
    connection = spawn_link(fn -> receive(do: (:go -> converse(socket, script, test, number))) end)
    :ok = :gen_tcp.controlling_process(socket, connection)
    send(connection, :go)
    accept(listener, script, test, number + 1)
  end

  defp converse(socket, script, test, number) do
    case :gen_tcp.recv(socket, 0) do
      {:ok, line} ->
        send(test, {:command, number, line})
        if line =~ ~r/^set /, do: {:ok, _value} = :gen_tcp.recv(socket, 0)
        reply = Agent.get_and_update(script, &List.pop_at(&1, 0))
        if reply == :close, do: :gen_tcp.close(socket), else: :gen_tcp.send(socket, reply || "")
        converse(socket, script, test, number)

      {:error, _closed} ->
        :ok
    end
  end

  describe "get/2" do
    test "returns the value, whatever bytes are in it", %{listener: listener, client: client} do
      value = "a\r\nEND\r\n\0 b"
      script(listener, ["VALUE k 0 #{byte_size(value)}\r\n#{value}\r\nEND\r\n"])
      assert Memcached.get(client, "k") == {:ok, value}
      assert_received {:command, 1, "get k\r\n"}
    end

    test "returns a miss for what is not there", %{listener: listener, client: client} do
      script(listener, ["END\r\n"])
      assert Memcached.get(client, "k") == :miss
    end

    test "keeps the connection after a hit and after a miss", %{listener: listener, client: client} do
      script(listener, ["VALUE k 0 1\r\nv\r\nEND\r\n", "END\r\n", "END\r\n"])
      for _ <- 1..3, do: Memcached.get(client, "k")
      for _ <- 1..3, do: assert_received({:command, 1, "get k\r\n"})
    end
  end

  describe "set/4" do
    test "sends the value with its length and time to live", %{listener: listener, client: client} do
      script(listener, ["STORED\r\n"])
      assert Memcached.set(client, "k", "value", 60) == :ok
      assert_received {:command, 1, "set k 0 60 5\r\n"}
    end

    test "returns an error when the value is not stored", %{listener: listener, client: client} do
      script(listener, ["SERVER_ERROR out of memory\r\n"])
      assert Memcached.set(client, "k", "value", 60) == {:error, {:unexpected, "SERVER_ERROR out of memory\r\n"}}
    end
  end

  describe "a key that memcached would misread" do
    for {what, key} <- [
          {"with a space", "a b"},
          {"with a line break", "a\r\nflush_all"},
          {"with a control character", "a\0"},
          {"with a delete character", "a\d"},
          {"of more than 250 bytes", String.duplicate("a", 251)},
          {"of no bytes", ""}
        ] do
      test "#{what} is not sent", %{listener: listener, client: client} do
        script(listener, [])
        assert Memcached.get(client, unquote(key)) == {:error, :invalid_key}
        assert Memcached.set(client, unquote(key), "v", 60) == {:error, :invalid_key}
        refute_received {:command, _connection, _line}
      end
    end

    test "is one byte longer than the longest that is sent", %{listener: listener, client: client} do
      script(listener, ["END\r\n"])
      assert Memcached.get(client, String.duplicate("a", 250)) == :miss
    end
  end

  describe "a malformed reply" do
    for {what, reply} <- [
          {"of another command", "STORED\r\n"},
          {"that is an error", "ERROR\r\n"},
          {"that is empty", "\r\n"},
          {"without a carriage return", "END\n"},
          {"about another key", "VALUE other 0 1\r\nv\r\nEND\r\n"},
          {"without a length", "VALUE k 0\r\nv\r\nEND\r\n"},
          {"with a length that is no number", "VALUE k 0 1x\r\nv\r\nEND\r\n"},
          {"with a negative length", "VALUE k 0 -1\r\nv\r\nEND\r\n"},
          {"with a length that no item has", "VALUE k 0 #{@largest_item + 1}\r\nv\r\nEND\r\n"},
          {"with more than its length", "VALUE k 0 1\r\nvalue\r\nEND\r\n"},
          {"without an end", "VALUE k 0 1\r\nv\r\nVALUE k 0 1\r\n"},
          {"in a line that does not end", String.duplicate("VALUE", 100_000)}
        ] do
      test "#{what} is an error, and its connection is not used again", %{listener: listener, client: client} do
        script(listener, [unquote(reply), "END\r\n"])
        assert {:error, {:unexpected, _what}} = Memcached.get(client, "k")
        assert Memcached.get(client, "k") == :miss
        assert_received {:command, 1, "get k\r\n"}
        assert_received {:command, 2, "get k\r\n"}
      end
    end
  end

  describe "a server" do
    test "that is stuck costs no more than the timeout", %{listener: listener, client: client} do
      script(listener, [])
      assert Memcached.get(%{client | timeout: 20}, "k") == {:error, :timeout}
      assert Memcached.set(%{client | timeout: 20}, "k", "v", 1) == {:error, :timeout}
      assert_receive {:command, 1, "get k\r\n"}, @patience
      assert_receive {:command, 2, "set k 0 1 1\r\n"}, @patience
    end

    test "that stops in the middle of a value costs no more than the timeout", %{listener: listener, client: client} do
      script(listener, ["VALUE k 0 10\r\nvalue"])
      assert Memcached.get(%{client | timeout: 20}, "k") == {:error, :timeout}
    end

    test "that does not accept connections costs no more than the timeout", %{client: client} do
      assert Memcached.get(%{client | timeout: 20}, "k") == {:error, :timeout}
    end

    test "that hangs up is an error", %{listener: listener, client: client} do
      script(listener, [:close])
      assert Memcached.get(client, "k") == {:error, :closed}
    end

    test "that is not there is an error", %{listener: listener, client: client} do
      :ok = :gen_tcp.close(listener)
      assert Memcached.get(client, "k") == {:error, :econnrefused}
    end

    test "gets a second by default" do
      assert %Memcached{connections: :any, port: 1}.timeout == 1_000
    end
  end

  describe "idle connections" do
    test "are closed after an error, since their server may be another one now", %{listener: listener, client: client} do
      script(listener, ["END\r\n", "ERROR\r\n", "END\r\n"])
      # While one connection is in use the client makes another; then both are idle.
      use = fn _socket -> Memcached.get(client, "k") end
      assert Connections.with_connection(client.connections, fn -> connect(client) end, use) == :miss
      assert {:error, _reason} = Memcached.get(client, "k")
      assert Memcached.get(client, "k") == :miss
      assert_received {:command, 3, "get k\r\n"}
    end

    test "close when a process dies that was using one", %{listener: listener, client: client} do
      assert Connections.with_connection(client.connections, fn -> connect(client) end, fn _socket -> :ok end) == :ok
      {:ok, server_end} = :gen_tcp.accept(listener)
      test = self()

      user =
        spawn(fn ->
          Connections.with_connection(client.connections, fn -> {:error, :none_idle} end, fn _ -> hang(test) end)
        end)

      assert_receive :in_use, 5_000
      Process.exit(user, :kill)
      assert :gen_tcp.recv(server_end, 0, 5_000) == {:error, :closed}
    end
  end

  defp connect(client), do: :gen_tcp.connect(client.host, client.port, [:binary, active: false, packet: :line])

  defp hang(test) do
    send(test, :in_use)
    Process.sleep(:infinity)
  end
end
