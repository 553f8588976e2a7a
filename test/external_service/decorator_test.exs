# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.DecoratorTest do
  use ExternalService.Case, async: true

  defmodule Weather do
    use ExternalService.Decorator

    @decorate external_call(service)
    def today(service, result) do
      send(self(), {:attempted, service})
      result
    end

    @decorate external_call(service, max_attempts: 2)
    def week(service, reason) do
      {:retry, {service, reason}}
    end

    @decorate external_call(service, %ExternalService.RetryOptions{max_attempts: attempts, base: 0})
    def month(service, attempts) do
      {:retry, {service, attempts}}
    end

    @decorate external_call!(service)
    def today!(service, result), do: service && result

    @decorate external_call!(service, max_attempts: 1)
    def week!(service), do: service && :retry

    def plain(value), do: value
  end

  test "the decorated body is the function of a call", %{service: s} do
    start_recording(s, retry: [max_attempts: 3])
    assert Weather.today(s, {:ok, :sun}) == {:ok, :sun}
    assert attempts() == 1
    assert {:error, %RetriesExhausted{context: %{service: ^s, attempts: 3}}} = Weather.today(s, :retry)
    assert attempts() == 3
  end

  test "a second argument is the options of the call, and may use the function's arguments", %{service: s} do
    start_recording(s)
    assert {:error, %RetriesExhausted{context: %{attempts: 2, reason: {^s, :fog}}}} = Weather.week(s, :fog)
    assert {:error, %RetriesExhausted{context: %{attempts: 4, reason: {^s, 4}}}} = Weather.month(s, 4)
  end

  test "with a ! the call raises its errors", %{service: s} do
    start_recording(s, retry: [max_attempts: 2])
    assert Weather.today!(s, :rain) == :rain
    assert %RetriesExhausted{context: %{attempts: 2}} = raised(fn -> Weather.today!(s, :retry) end)
    assert %RetriesExhausted{context: %{attempts: 1}} = raised(fn -> Weather.week!(s) end)
  end

  test "a service that is not started is an error as in any call", %{service: s} do
    assert {:error, %ServiceNotStarted{}} = Weather.today(s, :fine)
  end

  test "functions without a decorator stay as they are" do
    assert Weather.plain(1) == 1
  end
end
