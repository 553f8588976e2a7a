# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ServiceTest do
  use ExternalService.Case, async: true

  # Starts services of these names for the length of a test.
  defp start_all(names, options) do
    on_exit(fn -> Enum.each(names, &ExternalService.stop/1) end)
    for name <- names, do: :ok = ExternalService.start(name, options)
  end

  describe "a name" do
    test "may be any term, and equal terms are the same service", %{service: s} do
      names = [
        "a string #{inspect(s)}",
        {s, :tuple, 1},
        %{s => "map"},
        [s, 1],
        make_ref(),
        self(),
        <<0, 255, 1::3>>,
        {s, Integer.pow(10, 30)},
        {s, nil},
        {s, ""},
        {s, String.duplicate("x", 10_000)}
      ]

      start_all(names, circuit_breaker: [tolerate: 0])

      for name <- names do
        assert ExternalService.call(name, fn -> {:called, name} end) == {:called, name}
        assert fail(name) |> elem(1) |> Map.fetch!(:context) |> Map.fetch!(:service) === name
        assert ExternalService.state(name) == :open
        assert name in ExternalService.services()
      end

      assert ExternalService.state(Map.new([{s, "map"}])) == :open
    end

    test "1 is not 1.0, and \"a\" is not :a", %{service: s} do
      start_all([{s, 1}, {s, 1.0}, {s, "a"}, {s, :a}], circuit_breaker: [tolerate: 0])
      fail({s, 1})
      fail({s, "a"})
      assert ExternalService.state({s, 1}) == :open
      assert ExternalService.state({s, 1.0}) == :closed
      assert ExternalService.state({s, "a"}) == :open
      assert ExternalService.state({s, :a}) == :closed
    end

    test "is never turned into an atom" do
      name = "a name that nobody has #{inspect(make_ref())}"
      start_all([name], circuit_breaker: [tolerate: 0])
      for _ <- 1..2, do: fail(name)
      ExternalService.stop(name)
      capture_log(fn -> fail(name) end)
      for text <- [name, inspect(name)], do: assert_raise(ArgumentError, fn -> String.to_existing_atom(text) end)
    end
  end

  describe "services/0" do
    test "lists what is started, and no longer lists what is stopped", %{service: s} do
      refute s in ExternalService.services()
      ExternalService.start(s)
      ExternalService.start(s)
      assert Enum.count(ExternalService.services(), &(&1 === s)) == 1
      ExternalService.stop(s)
      refute s in ExternalService.services()
    end
  end

  describe "start/2 on a running service" do
    test "closes the breaker and clears its history", %{service: s} do
      options = [circuit_breaker: [tolerate: 1]]
      ExternalService.start(s, options)
      fail(s)
      ExternalService.start(s, options)
      fail(s)
      assert ExternalService.state(s) == :closed
      fail(s)
      assert ExternalService.state(s) == :open
      ExternalService.start(s, options)
      assert ExternalService.state(s) == :closed
    end

    test "replaces every option, those not given by their defaults", %{service: s} do
      start_recording(s, retry: [max_attempts: 2, base: 7], telemetry: :changes, circuit_breaker: [tolerate: :infinity])
      start_recording(s, retry: [max_attempts: 3])
      Recorder.attach(s, [[:call, :start]])
      ExternalService.call(s, attempting(:retry))
      assert {attempts(), slept()} == {3, [10, 20]}
      assert Recorder.names() == [[:call, :start]]
      for _ <- 1..8, do: CircuitBreaker.melt(s)
      assert ExternalService.state(s) == :open
    end

    test "can change the backend, and the old one is removed", %{service: s} do
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend()])
      assert_received {:installed, ^s, _}
      ExternalService.start(s)
      assert StandIn.count(:remove) == 1
      fail(s)
      assert StandIn.count(:melt) == 0
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend()])
      assert_received {:installed, ^s, _}
    end

    test "leaves calls that are under way alone", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      assert ExternalService.call(s, fn -> ExternalService.start(s) && :fine end) == :fine

      assert {:error, %RetriesExhausted{}} =
               ExternalService.call(s, [max_attempts: 1], fn -> ExternalService.start(s) && :retry end)
    end
  end

  describe "stop/1" do
    test "is :ok however often, also for what never was", %{service: s} do
      assert ExternalService.stop(s) == :ok
      ExternalService.start(s)
      assert ExternalService.stop(s) == :ok
      assert ExternalService.stop(s) == :ok
    end

    test "leaves nothing behind: every question answers as before the start", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      fail(s)
      ExternalService.stop(s)
      assert ExternalService.state(s) == {:error, :not_found}
      assert ExternalService.reset(s) == {:error, :not_found}
      refute ExternalService.available?(s)
      refute ExternalService.blown?(s)
      assert {:error, %ServiceNotStarted{}} = ExternalService.call(s, fn -> 1 end)
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      assert ExternalService.state(s) == :closed
    end

    test "and start/2 from many processes at once leave the service in one piece", %{service: s} do
      together(8, fn n ->
        for k <- 1..10 do
          if rem(n + k, 3) == 0, do: ExternalService.stop(s), else: ExternalService.start(s)
          result = ExternalService.call(s, fn -> :fine end)
          assert result == :fine or match?({:error, %ServiceNotStarted{}}, result)
        end
      end)

      ExternalService.start(s)
      assert ExternalService.call(s, fn -> :fine end) == :fine
    end
  end
end
