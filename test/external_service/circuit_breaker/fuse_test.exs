# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.CircuitBreaker.FuseTest do
  use ExternalService.Case, async: true
  doctest ExternalService.CircuitBreaker.Fuse

  alias ExternalService.CircuitBreaker.{Fuse, Local}

  defmodule Wrapped do
    # A backend as users built them: its own word on top of the old one's.
    @behaviour ExternalService.CircuitBreaker

    @impl true
    def install(service, options) do
      {:ok, fuse} = Fuse.install(service, options)
      {:ok, %{fuse: fuse, told: options[:told]}}
    end

    @impl true
    def ask(service, config), do: Fuse.ask(service, config.fuse)

    @impl true
    def melt(service, config) do
      send(config.told, {:melt_of, Fuse.tolerate(config.fuse)})
      Fuse.melt(service, config.fuse)
    end

    @impl true
    def reset(service, config), do: Fuse.reset(service, config.fuse)

    @impl true
    def remove(service, config), do: Fuse.remove(service, config.fuse)
  end

  defp start(service, breaker) do
    start_on_clock(service, circuit_breaker: [backend: Fuse] ++ breaker)
  end

  test "has every function of the native backend" do
    for {name, arity} <- Local.__info__(:functions) do
      assert function_exported?(Fuse, name, arity), "no #{name}/#{arity}"
    end
  end

  test "opens on the failure after those tolerated, and closes after its open time", %{service: s} do
    clock = start(s, tolerate: 2, within: 1_000, reset: 5_000)
    for _ <- 1..2, do: fail(s)
    assert ExternalService.state(s) == :closed
    fail(s)
    assert ExternalService.blown?(s)
    VirtualClock.advance(clock, 5_000)
    assert ExternalService.available?(s)
  end

  test "takes the rules and the half-open state of the native backend", %{service: s} do
    clock = start(s, consecutive: 1, reset: 1_000, half_open: true)
    fail(s)
    VirtualClock.advance(clock, 1_000)
    assert ExternalService.state(s) == :half_open
    assert ExternalService.call(s, fn -> :fine end) == :fine
    assert %{state: :closed, consecutive: 0} = ExternalService.counts(s)
  end

  test "times calls for slow_call", %{service: s} do
    clock = start(s, slow_call: 100, min_calls: 1)
    ExternalService.call(s, fn -> VirtualClock.advance(clock, 100) end)
    assert ExternalService.state(s) == :open
  end

  test "obeys the hand, and a forced state is kept when the service is started afresh", %{service: s} do
    start(s, [])
    assert ExternalService.open(s, reason: :works) == :ok
    start(s, tolerate: 3)
    assert %{state: :forced_open, reason: :works} = ExternalService.counts(s)
    assert ExternalService.close(s) == :ok
    assert ExternalService.bypass(s) == :ok
    assert ExternalService.state(s) == :bypassed
    assert ExternalService.reset(s) == :ok
    assert ExternalService.state(s) == :closed
  end

  test "gives permits for calls made elsewhere", %{service: s} do
    start(s, consecutive: 1)
    assert {:ok, permit} = CircuitBreaker.admit(s)
    assert CircuitBreaker.report(permit, :failure) == :ok
    assert {:error, %CircuitBreakerOpen{}} = CircuitBreaker.admit(s)
  end

  test "carries a backend that is built on it", %{service: s} do
    ExternalService.start(s, circuit_breaker: [tolerate: 1, backend: {Wrapped, told: self()}])
    for _ <- 1..2, do: fail(s)
    assert_received {:melt_of, 1}
    assert ExternalService.blown?(s)
    assert ExternalService.reset(s) == :ok
    assert ExternalService.available?(s)
    assert ExternalService.stop(s) == :ok
  end

  test "that tolerates everything never opens", %{service: s} do
    assert {:ok, config} = Fuse.install(s, tolerate: :infinity, within: 1_000, reset: 1_000)
    assert Fuse.tolerate(config) == :infinity
    for _ <- 1..100, do: assert(Fuse.melt(s, config) == :ok)
    assert Fuse.ask(s, config) == :ok
  end

  test "tolerates the same with faults injected", %{service: s} do
    assert {:ok, config} = Fuse.install(s, tolerate: 4, within: 1_000, reset: 1_000, fault_injection: 0.5)
    assert Fuse.tolerate(config) == 4
  end
end
