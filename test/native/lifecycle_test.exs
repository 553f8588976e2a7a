# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Native.LifecycleTest do
  # Reloading native code can take a VM down, so each of these runs in a VM of its own.
  use ExUnit.Case, async: true

  @prelude """
  alias ExternalService.{Native, VirtualClock}
  Logger.configure(level: :none)

  # Loaded first: a second load that meets the first one's on_load half-way is never answered by OTP 25's code server.
  for module <- [Native, VirtualClock, ExternalService.CircuitBreaker.Local], do: Code.ensure_loaded!(module)

  reload = fn ->
    :code.purge(Native)
    {:module, Native} = :code.load_file(Native)
  end

  fail = fn service -> ExternalService.call(service, [max_attempts: 1], fn -> :retry end) end

  # true = works, false = refused; anything else ends the script
  works? = fn fun ->
    try do
      fun.()
      true
    rescue
      ArgumentError -> false
    end
  end
  """

  defp ebin, do: Application.app_dir(:external_service, "ebin")

  # Runs the script in a new VM, where the last thing it does must be to print "survived".
  defp in_a_vm(script) do
    script = @prelude <> script <> "\nIO.puts(\"survived\")"

    {output, status} =
      System.cmd(System.find_executable("elixir"), ["-pa", ebin(), "-e", script], stderr_to_stdout: true)

    assert status == 0, output
    assert output |> String.trim() |> String.split("\n") |> List.last() == "survived", output
  end

  test "live clocks, breakers and services keep working when the module is loaded again" do
    in_a_vm("""
    clock = VirtualClock.new()
    :ok = ExternalService.start(:live, clock: clock, circuit_breaker: [tolerate: 1, reset: 100])
    fail.(:live)
    reload.()
    :closed = ExternalService.state(:live)
    fail.(:live)
    :open = ExternalService.state(:live)
    reload.()
    reload.()
    :open = ExternalService.state(:live)
    VirtualClock.advance(clock, 100)
    :closed = ExternalService.state(:live)
    100 = VirtualClock.now(clock)
    """)
  end

  test "new handles work after the module was loaded again, together with old ones" do
    in_a_vm("""
    old = VirtualClock.new()
    reload.()
    :ok = ExternalService.start(:new, clock: old, circuit_breaker: [tolerate: 0, reset: 5])
    fail.(:new)
    :open = ExternalService.state(:new)
    VirtualClock.advance(old, 5)
    :closed = ExternalService.state(:new)
    """)
  end

  test "handles made before and dropped after loading again are freed without harm" do
    in_a_vm("""
    make = fn -> for _ <- 1..1000, do: ExternalService.CircuitBreaker.Local.install(:x, within: 1, clock: ExternalService.VirtualClock.new(1)) end

    for _ <- 1..10 do
      pid = spawn(fn ->
        handles = make.()
        receive do: (:drop -> length(handles))
      end)

      ref = Process.monitor(pid)
      reload.()
      send(pid, :drop)
      receive do: ({:DOWN, ^ref, _, _, :normal} -> :ok)
    end

    :erlang.garbage_collect()
    """)
  end

  test "calls that run while the module is loaded again and again go on" do
    in_a_vm("""
    :ok = ExternalService.start(:busy, circuit_breaker: [tolerate: 5, reset: 1], retry: [base: 0, max_attempts: 2])

    callers = for n <- 1..4 do
      Task.async(fn ->
        for k <- 1..5_000 do
          result = ExternalService.call(:busy, fn -> if rem(n + k, 7) == 0, do: :retry, else: :fine end)
          true = result == :fine or match?({:error, _}, result)
        end
      end)
    end

    reloads = for _ <- 1..20, do: :code.soft_purge(Native) && :code.load_file(Native)
    true = Enum.any?(reloads, &(&1 == {:module, Native}))
    Task.await_many(callers, 60_000)
    """)
  end

  test "after the module was deleted and purged, old handles work or are refused, and new ones work" do
    in_a_vm("""
    clock = VirtualClock.new()
    :ok = ExternalService.start(:old, clock: clock, circuit_breaker: [tolerate: 0])
    fail.(:old)

    for _ <- 1..5 do
      :code.delete(Native)
      :code.purge(Native)
      {:module, Native} = :code.load_file(Native)
      works?.(fn -> VirtualClock.advance(clock, 1) end)
      works?.(fn -> ExternalService.call(:old, fn -> :fine end) end)
      works?.(fn -> ExternalService.stop(:old) end)
      :ok = ExternalService.start(:old, clock: VirtualClock.new(), circuit_breaker: [tolerate: 0])
      :fine = ExternalService.call(:old, fn -> :fine end)
      fail.(:old)
      :open = ExternalService.state(:old)
      :erlang.garbage_collect()
    end
    """)
  end

  test "the module may be deleted while handles are live, and the VM ends well" do
    in_a_vm("""
    handles = for _ <- 1..100, do: elem(ExternalService.CircuitBreaker.Local.install(:x, within: 1), 1)
    :ok = ExternalService.start(:live)
    :code.delete(Native)
    :code.purge(Native)
    :erlang.garbage_collect()
    100 = length(handles)
    """)
  end
end
